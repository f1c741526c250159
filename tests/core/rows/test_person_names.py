"""Which names of columns are taken for identifiers of persons, in the large languages, and which are not."""

from __future__ import annotations

import pytest

from dpdist.core.rows.person_names import names_person, person_columns

ASKED = {
    "identifiers of anything": """
        id ID Id id2 uid uuid guid eid sid cid iid identifier code number key no driver_id hadm_id icustay_id stay_id
        sample_id case_id caseid studyid visit_no room_no zip_code zipcode icd_code order_key invoice_number barcode
        site.code obs/sample_id transactionId DEVICE-ID""",
    "persons in English": """
        patient_id PatientId patientID patientid PATNO USUBJID SUBJID subject participant_id pid PID user userId userid
        customer customer_no customer.number cust_key customerNumber employee_nr EmployeeID staff_no teacher_id bene_id
        member member_code household_id hhid hhidpn seqn pidp pernum nurse-id account account_number accountno
        card_no driver voter_id obs/donor obs/patient""",
    "names and numbers of persons": """
        name first_name last_name FirstName full-name surname nickname username user_name email email_address e_mail
        EMailAddress phone phone_number mobile_phone telephone ssn social_security_number social_security mrn
        nhs_number passport_no license_number driver_license tax_id taxpayer_id national_id ip_address address2""",
    "German": """
        Kunde kundennr KundenNr kundennummer kunden_id patienten_id Versichertennummer matrikelnummer Steuer-ID
        mitarbeiter mitgliedsnummer Nachname vorname Telefonnummer kontonummer schueler_id schüler_id""",
    "French": """
        nom prénom id_patient identifiant code_client numero_client numéro_sécu numero_securite_sociale matricule
        courriel nir id_usager""",
    "Spanish": """
        numero_paciente id_cliente codigo_cliente dni nombre apellido correo_electronico usuario teléfono curp
        cédula""",
    "Portuguese": "cpf cpf_cliente codigo_aluno nome id_utente código_do_cliente",
    "Italian": "codice_fiscale codice_paziente nome_cognome id_dipendente tessera_sanitaria",
    "Dutch": "klantnummer bsn klant_id naam patientnummer burgerservicenummer",
    "the North": """
        personnummer personnr kundnummer fodselsnummer fødselsnummer cpr_nr navn namn bruker_id henkilötunnus
        asiakasnumero""",
    "Polish, Czech, Turkish": """
        pesel numer_pacjenta nazwisko imię nr_klienta klient_id rodne_cislo tc_kimlik_no hasta_no müşteri_id""",
    "Indonesian, Vietnamese": "nama_pasien nik pelanggan_id ho_ten khach_hang",
    "Chinese": "患者编号 客户ID 用户id 身份证号 姓名 手机号 学号 会员编号 员工编号 患者編號",
    "Japanese": "患者番号 会員番号 氏名 顧客ID ユーザーID 社員番号 電話番号",
    "Korean": "환자번호 고객ID 이름 주민등록번호 전화번호",
    "Russian, Ukrainian": "пациент id_клиента номер_пациента код_клиента КодКлиента ФИО снилс НомерТелефона прізвище",
    "Arabic, Persian": "رقم_المريض معرف_العميل الاسم رقم_الهاتف کد_بیمار",
    "Hindi, Bengali": "रोगी_आईडी ग्राहक_क्रमांक नाम मोबाइल_नंबर গ্রাহক_আইডি",
    "Greek, Hebrew, Thai": "ονομα αριθμός_ασθενής שם ชื่อ",
    "with a character that cannot be seen": "cust\u200bomer \ufeffpatient_id",
}
NOT_ASKED = {
    "measurements": """
        age income weight height bmi score rating price amount balance total count sodium glucose albumin creatinine
        latitude longitude year month date temperature country city species note notes mode episode c0 x1 V1 rs123""",
    "of persons, but not their names": """
        customer_age user_rating patient_weight account_balance phone_usage phone_minutes email_opens person_years
        household_income family_size family_history employee_count student_teacher_ratio subject_weight user_agent
        card_present record_count address_count""",
    "counts": "num_children number_of_visits n_visits no_visits no_of_rooms numero_hijos anzahl_kinder key_rate",
    "words that end like an identifier": """
        paid humid valid grid lipid covid covid19 acid uric_acid amino_acid fluid thyroid steroid plasmid android
        solid rapid liquid hybrid void avoid casino piano volcano domino kimono aluminum platinum magnum sternum turkey
        monkey hockey keyword encode decode unicode idle identical node norm noise NO2 no2""",
    "names of things": "product_name file_name city_name species_name name_length",
    "numbers that are measured": "copy_number wave_number atomic_number octane_number yes_no",
    "other languages": """
        alter einkommen âge revenu edad ingresos idade renda età reddito leeftijd inkomen ålder wiek dochód возраст
        доход 年龄 收入 年齢 身長 客户年龄 信号 符号 나이 소득 العمر الدخل उम्र आय""",
}


@pytest.mark.parametrize("kind", ASKED)
def test_these_names_are_asked_about(kind: str) -> None:
    assert [name for name in ASKED[kind].split() if not names_person(name)] == []


@pytest.mark.parametrize("kind", NOT_ASKED)
def test_these_names_are_not(kind: str) -> None:
    assert person_columns(NOT_ASKED[kind].split()) == []


def test_a_pair_of_answers_is_no_number() -> None:
    assert person_columns(["smoker_yes", "smoker_no", "house_no"]) == ["house_no"]
